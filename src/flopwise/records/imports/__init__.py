"""Files of other tools as runs: one module a format, and one way in which what they hold is cleaned."""
