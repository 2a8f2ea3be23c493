"""Alembic's entry: the migrations run on the connection, and in the transaction, that the store hands over."""

from __future__ import annotations

from alembic import context

from flopwise.records.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()
