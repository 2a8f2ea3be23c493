"""The facts as files: tables of accelerators, offers, models, formats and calibrations, each row with its source."""

from pathlib import Path

DATA = Path(__file__).parent
