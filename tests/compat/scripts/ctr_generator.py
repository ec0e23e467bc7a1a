"""Turns lines of a click log into slots."""
import paddle.fluid.incubate.data_generator as dg


class CriteoDataset(dg.MultiSlotDataGenerator):
    def generate_sample(self, line):
        def reader():
            fields = line.rstrip('\n').split('\t')
            dense = [float(v) for v in fields[0].split(' ')]
            slots = [[int(v) for v in field.split(' ')] for field in fields[1:-1]]
            names = ["dense_input"] + ["C" + str(i + 1) for i in range(len(slots))] + ["label"]
            yield list(zip(names, [dense] + slots + [[int(fields[-1])]]))

        return reader


d = CriteoDataset()
d.set_batch(24)
d.run_from_stdin()
