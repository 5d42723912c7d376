"""The first run on a new machine: checks of the machine, a test of its attention kernels, and a measurement of its
speed."""
