"""The commands of `flopwise runs`: NAME is the `command` of NAME_runs.py, loaded when it runs."""
