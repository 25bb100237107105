"""The flat faces of the primitives, blocking and for asyncio. `holdfast.sync` and `holdfast.aio` put them together."""
