"""Prices of your own: files as others write them, what gpuhunt fetches, and how old all prices are."""
