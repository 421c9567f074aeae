"""A kernel as text: read it, compile it with NVRTC, cache what was compiled, name its errors."""
