"""A kit: all that a device needs to build, judge and time engines, and a report to bring back.

A Jetson's engine must be built on that Jetson. So what travels is the graphs,
the source's answers on a few images, those images, and one command; PyTorch
stays where the model was exported. What the machine that packs writes down in
`kit.json` is checked, file by file, before the device begins.
"""
