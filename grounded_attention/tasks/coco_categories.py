# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The 80 categories of COCO in order; class k of a detector with background is category k - 1."""

COCO_CATEGORIES = (
    "person bicycle car motorcycle airplane bus train truck boat traffic_light fire_hydrant stop_sign parking_meter "
    "bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella handbag tie suitcase frisbee "
    "skis snowboard sports_ball kite baseball_bat baseball_glove skateboard surfboard tennis_racket bottle wine_glass "
    "cup fork knife spoon bowl banana apple sandwich orange broccoli carrot hot_dog pizza donut cake chair couch "
    "potted_plant bed dining_table toilet tv laptop mouse remote keyboard cell_phone microwave oven toaster sink "
    "refrigerator book clock vase scissors teddy_bear hair_drier toothbrush"
).split()
# The files of VCR write the names without their spaces.
CLASSES = {name.replace("_", joint): number for number, name in enumerate(COCO_CATEGORIES, 1) for joint in (" ", "")}
