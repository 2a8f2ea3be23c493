"""One command a file: `NAME.py` holds `command`; `flopwise.cli.app.COMMANDS` lists the names."""
