"""dali and dali-cpu: NVIDIA DALI decodes the crops; what to do is the plan's.

A pipeline of DALI's has no random operator here: each batch's encoded images and boxes go in from
outside, so it gives the samples of every other engine. Labels do not go through it. Images that are
no plain JPEGs, which only a plain folder holds, are made by our own decoders and join the batch;
what DALI refuses is made without it, which names the sample and knows what to do then.
"""
