"""The memory of keys and values on a GPU: each array allocated whole when the model is loaded, and kept.

What ``engine.llm.kv`` does page by page has no counterpart there: memory is not given back, and the runtime offers no
copy between slots, so texts that begin alike share nothing. One thread drives it, with its decoder.
"""

from engine.llm.kv import KvShape
from engine.session import DeviceArray


class DeviceKvMemory:
    """The arrays, all of them zeros at first."""

    def __init__(self, shape: KvShape, device: str, device_id: int = 0) -> None:
        """device: as ONNX Runtime calls it. Raises ModelError when the device has too little memory."""
        self.device = device
        self.device_id = device_id
        sizes = (shape.slots, shape.kv_heads, shape.length, shape.head_dim)
        self._arrays = [DeviceArray(sizes, device, device_id) for _ in range(2 * shape.layers)]
        self.committed_bytes = 2 * shape.layers * shape.array_bytes

    def address_of(self, number: int) -> int:
        """Where an array begins on the device; array `2·layer` holds a layer's keys, the next one its values."""
        return self._arrays[number].address

    def touch(self, slot: int, tokens: int) -> None:
        """All is there."""

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Not there: whoever plans with slots must not ask for it."""
        raise NotImplementedError("keys and values on a device are not copied between slots; set prefix_ttl to 0s")

    def trim(self, slot: int, tokens: int) -> None:
        """Nothing is given back."""
