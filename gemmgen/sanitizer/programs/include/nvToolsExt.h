// The former place of NVTX's header.
#pragma once
#include <nvtx3/nvToolsExt.h>
