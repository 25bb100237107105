"""What can be asked for. Each primitive is client-side logic over the engine, written once for both worlds."""
