// Marks what the shared core exports; everything else is hidden.
#pragma once

#define DFT_API __attribute__((visibility("default")))
