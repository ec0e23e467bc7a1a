"""``paddle.fluid.incubate.data_generator``."""

from fleetx.data.multi_slot_generator import MultiSlotDataGenerator, MultiSlotStringDataGenerator

DataGenerator = MultiSlotDataGenerator

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]
