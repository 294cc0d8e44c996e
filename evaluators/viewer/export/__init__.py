"""The viewer as static pages that open from the disk: `gymcp view --export`."""
