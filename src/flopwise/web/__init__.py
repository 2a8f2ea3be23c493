"""The local web app and REST API: the commands of the command line, asked by HTTP and shown as pages."""
