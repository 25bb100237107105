"""The flat faces of the primitives, blocking and for asyncio. `lockfast.sync` and `lockfast.aio` put them together."""
