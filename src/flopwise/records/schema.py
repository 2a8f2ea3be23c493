"""The tables of a store of runs after the newest migration."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Integer, MetaData, String, Table, Text, UniqueConstraint

REVISIONS = ("0001",)
"""The migrations, oldest first: `migrations/versions` holds a file for each."""
VERSION_TABLE = "flopwise_revision"
NUMBER = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts by itself in a plain INTEGER only

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("run_id", String(32), nullable=False, unique=True),
    Column("name", Text, nullable=False, index=True),
    Column("task", Text, nullable=False),
    Column("started_at_s", Double, nullable=False, index=True),
    Column("ended_at_s", Double),
    Column("last_at_s", Double),
    Column("status", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("model", Text),
    Column("gpu", Text),
    Column("gpus", Integer),
    Column("host", Text),
    Column("price_usd_per_hour", Double),
    Column("budget_usd", Double),
    Column("software", Text, nullable=False),  # this and the next two: JSON
    Column("settings", Text, nullable=False),
    Column("expected", Text),
)

series = Table(  # one metric of one device in a run, with the summary of its samples
    "series",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("run_number", NUMBER, nullable=False),
    Column("metric", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("size", NUMBER, nullable=False),  # samples, finite or not
    Column("count", NUMBER, nullable=False),
    Column("total", Double, nullable=False),
    Column("low", Double),
    Column("high", Double),
    Column("last", Double),
    Column("last_at_s", Double, nullable=False),
    UniqueConstraint("run_number", "metric", "device", name="series_of_run"),
)

samples = Table(  # clustered by series: a chart reads neighbours
    "samples",
    metadata,
    Column("series_number", NUMBER, primary_key=True, autoincrement=False),
    Column("position", NUMBER, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("step", BigInteger),
    Column("value", Double),  # SQLite keeps NaN as NULL
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    Column("number", NUMBER, primary_key=True),
    Column("run_number", NUMBER, nullable=False, index=True),
    Column("at_s", Double, nullable=False),
    Column("step", BigInteger),
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("device", Text, nullable=False),
)

batches = Table(  # the last one of each writer: a batch that is sent again is not written again
    "batches",
    metadata,
    Column("writer", String(32), primary_key=True),
    Column("run_number", NUMBER, nullable=False, index=True),
    Column("batch", NUMBER, nullable=False),
)
