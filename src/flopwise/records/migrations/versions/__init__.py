"""One file a revision, with what it adds written out: later changes of `schema` change no earlier step."""
