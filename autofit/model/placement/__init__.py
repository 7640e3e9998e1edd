"""The devices of layers and tensors under given settings, and the layouts worth a launch."""
