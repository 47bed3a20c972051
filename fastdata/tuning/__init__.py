"""Tuning: which setting feeds the training, by measurement.

    limits      what this machine lets the loader use
    subjects    what is tuned: a dataset of ours, or any torch Dataset; a setting of it, running
    probes      what a sample costs in each stage, in one process
    model       the rate that follows for any number of workers
    trials      settings beside each other, with the training step
    search      all of that in order, within a budget
    verdict     what it comes to, in words
    plot        and in a picture

:func:`fastdata.tune` and :func:`fastdata.tune_dataloader` are in :mod:`fastdata.tuning.tune` and
:mod:`fastdata.tuning.dataloader`.
"""
