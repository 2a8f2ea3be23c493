"""Calibration profiles: named folders of facts that `flopwise calibrate` makes of a user's own measurements.

A profile has the form of any facts folder, and `profile.json` beside it: what it was made of and what it is worth. All
stand in one folder, which FLOPWISE_CALIBRATIONS names, else `flopwise/calibrations` in the user's data folder.
"""

from __future__ import annotations

from pathlib import Path

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.price_files import user_folder

PROFILES_VARIABLE = "FLOPWISE_CALIBRATIONS"
PROFILE_FILE = "profile.json"


def profiles_folder() -> Path:
    """The path of the folder of all profiles; it need not exist."""
    return Path(user_folder(PROFILES_VARIABLE, "calibrations"))


def profile_names() -> list[str]:
    """The names of all profiles, in alphabetical order."""
    try:
        return sorted(entry.name for entry in profiles_folder().iterdir() if (entry / PROFILE_FILE).is_file())
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise SpecError(f"folder of profiles {profiles_folder()} cannot be read ({fault.strerror or fault})") from None


def profile_path(name: str) -> Path:
    """The folder of a profile. Raises UnknownNameError: there is none of that name."""
    known = profile_names()
    if name not in known:
        hint = "" if known else "there is none yet: `flopwise calibrate FILE` makes one"
        raise UnknownNameError("calibration profile", str(name)[:80], known, hint)
    return profiles_folder() / name
