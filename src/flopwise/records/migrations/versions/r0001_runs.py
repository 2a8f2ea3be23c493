"""The first layout: runs, series with their summaries, samples, events, batches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "runs",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("run_id", sa.String(32), nullable=False, unique=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("started_at_s", sa.Double, nullable=False),
        sa.Column("ended_at_s", sa.Double),
        sa.Column("last_at_s", sa.Double),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("model", sa.Text),
        sa.Column("gpu", sa.Text),
        sa.Column("gpus", sa.Integer),
        sa.Column("host", sa.Text),
        sa.Column("price_usd_per_hour", sa.Double),
        sa.Column("budget_usd", sa.Double),
        sa.Column("software", sa.Text, nullable=False),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("expected", sa.Text),
    )
    op.create_index("ix_runs_name", "runs", ["name"])
    op.create_index("ix_runs_started_at_s", "runs", ["started_at_s"])
    op.create_table(
        "series",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("run_number", NUMBER, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("size", NUMBER, nullable=False),
        sa.Column("count", NUMBER, nullable=False),
        sa.Column("total", sa.Double, nullable=False),
        sa.Column("low", sa.Double),
        sa.Column("high", sa.Double),
        sa.Column("last", sa.Double),
        sa.Column("last_at_s", sa.Double, nullable=False),
        sa.UniqueConstraint("run_number", "metric", "device", name="series_of_run"),
    )
    op.create_table(
        "samples",
        sa.Column("series_number", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("position", NUMBER, primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("step", sa.BigInteger),
        sa.Column("value", sa.Double),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "events",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("run_number", NUMBER, nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("step", sa.BigInteger),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
    )
    op.create_index("ix_events_run_number", "events", ["run_number"])
    op.create_table(
        "batches",
        sa.Column("writer", sa.String(32), primary_key=True),
        sa.Column("run_number", NUMBER, nullable=False),
        sa.Column("batch", NUMBER, nullable=False),
    )
    op.create_index("ix_batches_run_number", "batches", ["run_number"])
