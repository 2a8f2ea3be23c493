"""Assessments as documents: the same blocks as one page of HTML and as Markdown."""
