"""``gymcp demo``: above the other rooms, because it plays what they offer."""
