"""The primitives: client-side logic over the engine, written once for both worlds."""
