"""Rows of the JSON document of `analyzer usage`."""


def by_key(document, key):
    return {group[key]: group for group in document["groups"]}


def parts_of(document, name):
    """Return the figure of all rows that add up to the total."""
    rows = [*document["groups"], *document["unattributed"], document["remainder"]]
    return [row.get(name) or 0.0 for row in rows]
