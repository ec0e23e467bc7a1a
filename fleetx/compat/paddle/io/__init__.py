"""``paddle.io``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.io.dataset": (
            "Dataset IterableDataset TensorDataset ComposeDataset ChainDataset ConcatDataset "
            "Subset random_split"
        ),
        "paddle.io.sampler": (
            "Sampler SequenceSampler RandomSampler WeightedRandomSampler SubsetRandomSampler "
            "BatchSampler DistributedBatchSampler"
        ),
        "paddle.io.reader": "DataLoader get_worker_info default_collate_fn default_convert_fn",
    },
    modules=["dataset", "sampler", "reader"],
)
