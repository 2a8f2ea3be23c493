"""The questions, as functions: one module for each group of commands, the same nouns as on the command line."""
