"""What was measured in model_softmax.json: sinks and softcaps. Its rows are pairs, as those of best_peers.json."""

RECORD = "model_softmax"
FORWARD, BACKWARD = "forward", "backward"
WITHOUT = "the same without"  # a peer, as flash-attn-4 is
