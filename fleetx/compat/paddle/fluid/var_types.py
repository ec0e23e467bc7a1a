"""Kinds of variables: formats of numbers are torch's, so that ``var.dtype`` equals them."""

from enum import Enum

import torch


class Kind(Enum):
    """What a variable is, where it is no array of numbers."""

    LOD_TENSOR = 7
    SELECTED_ROWS = 8
    FEED_MINIBATCH = 9
    FETCH_LIST = 10
    STEP_SCOPES = 11
    LOD_RANK_TABLE = 12
    LOD_TENSOR_ARRAY = 13
    PLACE_LIST = 14
    READER = 15
    RAW = 17


class VarType:
    """``VarDesc.VarType``."""

    BOOL = torch.bool
    INT8, INT16, INT32, INT64 = torch.int8, torch.int16, torch.int32, torch.int64
    UINT8 = torch.uint8
    FP16, FP32, FP64, BF16 = torch.float16, torch.float32, torch.float64, torch.bfloat16
    COMPLEX64, COMPLEX128 = torch.complex64, torch.complex128
    LOD_TENSOR, SELECTED_ROWS = Kind.LOD_TENSOR, Kind.SELECTED_ROWS
    FEED_MINIBATCH, FETCH_LIST = Kind.FEED_MINIBATCH, Kind.FETCH_LIST
    STEP_SCOPES, LOD_RANK_TABLE = Kind.STEP_SCOPES, Kind.LOD_RANK_TABLE
    LOD_TENSOR_ARRAY, PLACE_LIST = Kind.LOD_TENSOR_ARRAY, Kind.PLACE_LIST
    READER, RAW = Kind.READER, Kind.RAW


class VarDesc:
    """The description of a variable."""

    VarType = VarType
