"""Generation beside training: rollouts go on while the learner updates, at most so many weight versions behind."""
