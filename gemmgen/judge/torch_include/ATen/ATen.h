#include "torch_tensors.h"  // stands for this header of torch
