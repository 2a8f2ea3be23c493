"""The steps from one layout of a store to the next, applied by Alembic when a store is opened for writing."""
