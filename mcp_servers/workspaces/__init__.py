"""The files of an episode: a workspace made from a read-only seed, and the digest of what became of it."""
