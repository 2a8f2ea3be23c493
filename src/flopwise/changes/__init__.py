"""Single changes of a job or a service, estimated again: one list for each, and what they save and move."""
