// read_rows: the rows that a stored page stands for, exact or decoded.
#pragma once

#include "attention/exact_page.h"
#include "attention/page_pass.h"
#include "kvant/format.h"

namespace kvant {

// Rows of one head and side of a page, from `first_slot` on. REQUIRES rows within the page; for
// values, a layer with values of its own or a range of its keys.
void read_rows(const LayerFormat& layer, const PageRecord& page, int head, Side side,
               int first_slot, const RowsOut& out);

}  // namespace kvant
