"""The algorithm: rollout, reward, advantage, update, anchor. It uses no files, process groups or model library."""
