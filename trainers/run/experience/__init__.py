"""The episodes of an iteration: newly played ones, and earlier ones that are learnt again."""
