"""Migrations of a store's tables, applied by Alembic when a store is opened for writing."""
