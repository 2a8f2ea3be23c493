"""What training asks of storage, and what kinds of storage deliver."""
