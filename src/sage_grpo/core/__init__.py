"""The algorithm: rollout, reward, advantage, update, anchor. Knows no files, processes or model library."""
