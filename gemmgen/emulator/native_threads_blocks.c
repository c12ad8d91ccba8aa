// The course of blocks, behind a kernel's own code: `run_thread` runs a thread to its end or to its next meeting with others.

// An instruction that the lanes `group` of a warp execute together; 0 if it takes a value from a lane that is not there.
static int meet_in_warp(struct Context *c, struct Thread *warp, uint32_t group, uint32_t mask, int kind) {
  uint32_t ballot = 0, reduced = 0;
  int first = 1;
  for (int lane = 0; lane < WARP; ++lane) {
    if (!(group >> lane & 1)) continue;
    const uint32_t x = warp[lane].x[0];
    ballot |= (uint32_t)(x != 0) << lane;
    switch (first ? -1 : kind) {
      case -1: reduced = x; break;
      case REDUX_ADD: reduced += x; break;
      case REDUX_MIN: reduced = x < reduced ? x : reduced; break;
      case REDUX_MAX: reduced = x > reduced ? x : reduced; break;
      case REDUX_SMIN: reduced = (int32_t)x < (int32_t)reduced ? x : reduced; break;
      case REDUX_SMAX: reduced = (int32_t)x > (int32_t)reduced ? x : reduced; break;
      case REDUX_AND: reduced &= x; break;
      case REDUX_OR: reduced |= x; break;
      case REDUX_XOR: reduced ^= x; break;
    }
    first = 0;
  }
  ballot &= mask;
  const uint32_t there = group & mask;
  for (int lane = 0; lane < WARP; ++lane) {
    if (!(group >> lane & 1)) continue;
    struct Thread *t = &warp[lane];
    switch (kind) {
      case VOTE_ALL: t->r[0] = ballot == there; break;
      case VOTE_ANY: t->r[0] = ballot != 0; break;
      case VOTE_UNIFORM: t->r[0] = ballot == 0 || ballot == there; break;
      case VOTE_BALLOT: t->r[0] = ballot; break;
      case SHUFFLE_UP: case SHUFFLE_DOWN: case SHUFFLE_BUTTERFLY: case SHUFFLE_INDEX: {
        const int offset = t->x[1] & 31, clamp = t->x[2] & 31, segment = t->x[2] >> 8 & 31;
        const int highest = (lane & segment) | (clamp & ~segment), lowest = lane & segment;
        const int chosen = kind == SHUFFLE_UP ? lane - offset : kind == SHUFFLE_DOWN ? lane + offset
                         : kind == SHUFFLE_BUTTERFLY ? lane ^ offset : lowest | (offset & ~segment);
        const int inside = kind == SHUFFLE_UP ? chosen >= highest : chosen <= highest;
        const int is_missing = inside && (chosen < 0 || chosen >= WARP || !(there >> chosen & 1));
        if (is_missing && !FOLLOWS_SHUFFLES) return c->why = LANE_IS_MISSING, 0;
        t->lacked = is_missing ? 1 : warp[inside ? chosen : lane].lacks;
        t->r[0] = is_missing ? 0 : warp[inside ? chosen : lane].x[0];
        t->r[1] = (uint32_t)inside;
        break;
      }
      case MATCH_ANY: case MATCH_ALL: {
        uint32_t equal = 0;
        for (int other = 0; other < WARP; ++other)
          equal |= (uint32_t)((group >> other & 1) && warp[other].x[0] == t->x[0] && warp[other].x[1] == t->x[1]) << other;
        t->r[1] = equal == group;
        t->r[0] = kind == MATCH_ANY || t->r[1] ? equal : 0;
        break;
      }
      case ACTIVE: t->r[0] = group; break;
      default: t->r[0] = reduced;
    }
  }
  return 1;
}

// Lets the lanes of a warp go on that wait for each other and are complete; 0 if there are such lanes, but none can go on.
static int release_warp(struct Context *c, struct Thread *warp, uint32_t size, uint32_t number, int *released) {
  uint32_t gone = size < WARP ? ~0u << size : 0, waiting = 0;
  for (uint32_t lane = 0; lane < size; ++lane) {
    gone |= (uint32_t)(warp[lane].state == EXITED) << lane;
    waiting |= (uint32_t)(warp[lane].state == IN_WARP) << lane;
  }
  *released = 0;
  uint32_t left = waiting;
  while (left) {
    const struct Thread *first = &warp[__builtin_ctz(left)];
    const uint32_t mask = first->x[3];
    uint32_t group = 0;
    for (uint32_t lane = 0; lane < size; ++lane)
      group |= (uint32_t)((left >> lane & 1) && warp[lane].site == first->site && warp[lane].x[3] == mask) << lane;
    left &= ~group;
    const int kind = SITES[first->site].kind;
    if (group & ~mask) return c->why = STUCK, 0;
    if (kind != ACTIVE && mask & ~(group | gone)) continue;
    if (kind == WARP_BARRIER) {
      ++c->now;
      if (!(~mask & ~gone)) c->warp_start[number] = c->now;
    } else if (!meet_in_warp(c, warp, group, mask, kind)) {
      return 0;
    }
    for (uint32_t lane = 0; lane < size; ++lane) if (group >> lane & 1) warp[lane].state = RUNNING;
    *released = 1;
  }
  c->why = STUCK;
  return !waiting || *released;
}

// Times begin anew: records of this launch's earlier blocks keep their codes, all others go.
static void begin_anew(struct Context *c) {
  for (int64_t number = 0; number < c->region_count; ++number) {
    const struct Region *r = &c->regions[number];
    if (!r->watched) continue;
    const uint64_t first = (r->start - c->base) >> GRANULE_SHIFT, last = (r->start - c->base + r->size) >> GRANULE_SHIFT;
    for (uint64_t g = first; g < last; ++g) {
      struct Granule *known = &c->granules[g];
      const uint32_t start = c->launch_start << CODE_BITS;
      known->writer = known->writer < start ? 0 : 1 << CODE_BITS | (known->writer & (CODES - 1));
      known->reader = known->reader < start ? 0 : 1 << CODE_BITS | (known->reader & (CODES - 1));
    }
  }
  if (c->shared_bytes) memset(c->shared_granules, 0, ((c->shared_bytes + SHARED_START >> SHARED_SHIFT) + 1) * sizeof *c->shared_granules);
  c->launch_start = 1;
  c->now = 1;
}

static int run_block(struct Context *c, struct Thread *threads, uint64_t block) {
  const uint32_t count = c->threads;
  const uint32_t at[3] = {(uint32_t)(block % c->grid[0]), (uint32_t)(block / c->grid[0] % c->grid[1]), (uint32_t)(block / c->grid[0] / c->grid[1])};
  if (c->now >= LAST_TIME / 2) begin_anew(c);
  c->block_start = c->phase_start = ++c->now;
  memset(c->warp_start, 0, sizeof c->warp_start);
  if (!SUSPENDS) {
    struct Thread *t = threads;
    memcpy(t->ctaid, at, sizeof at);
    for (uint32_t number = 0; number < count; ++number) {
      t->number = number;
      t->tid[0] = number % c->block[0], t->tid[1] = number / c->block[0] % c->block[1], t->tid[2] = number / c->block[0] / c->block[1];
      t->at = 0;
      t->iterations = 0;
      if (LOCAL_BYTES) memset(c->local_state, 0, LOCAL_BYTES);
      if (run_thread(c, t) != EXITED) return GIVEN_UP;
    }
    return EXITED;
  }
  for (uint32_t number = 0; number < count; ++number) {
    struct Thread *t = &threads[number];
    memcpy(t->ctaid, at, sizeof at);
    t->number = number;
    t->tid[0] = number % c->block[0], t->tid[1] = number / c->block[0] % c->block[1], t->tid[2] = number / c->block[0] / c->block[1];
    t->at = 0;
    t->iterations = 0;
    t->state = RUNNING;
  }
  if (LOCAL_BYTES) memset(c->local_state, 0, (uint64_t)LOCAL_BYTES * count);
  for (;;) {
    if (c->now >= LAST_TIME) return c->why = NO_TIME_LEFT, GIVEN_UP;
    for (uint32_t first = 0; first < count; first += WARP) {
      const uint32_t size = count - first < WARP ? count - first : WARP;
      int released = 1;
      while (released) {
        for (uint32_t lane = 0; lane < size; ++lane) {
          struct Thread *t = &threads[first + lane];
          if (t->state == RUNNING && (t->state = run_thread(c, t)) == GIVEN_UP) return GIVEN_UP;
        }
        if (!release_warp(c, threads + first, size, first / WARP, &released)) return GIVEN_UP;
      }
    }
    uint32_t waiting = 0, ended = 0, votes = 0;
    int32_t site = -1;
    for (uint32_t number = 0; number < count; ++number) {
      const struct Thread *t = &threads[number];
      if (t->state == EXITED) { ++ended; continue; }
      if (site >= 0 && t->site != site) return c->why = BARRIERS_DIFFER, GIVEN_UP;
      site = t->site;
      votes += t->x[0] != 0;
      ++waiting;
    }
    if (!waiting) break;
    if (ended) return c->why = BARRIER_IS_MISSED, GIVEN_UP;
    c->phase_start = ++c->now;
    const int kind = SITES[site].kind;
    for (uint32_t number = 0; number < count; ++number) {
      threads[number].state = RUNNING;
      threads[number].r[0] = kind == BARRIER_POPC ? votes : kind == BARRIER_AND ? votes == count : votes > 0;
    }
  }
  return EXITED;
}

// Runs blocks; the number of those that have ended: fewer if the launch is given up.
int64_t run_blocks(struct Context *c, int64_t first, int64_t count) {
  struct Thread *threads = calloc(SUSPENDS ? c->threads : 1, sizeof *threads);
  if (!threads) return 0;
  int64_t done = 0;
  while (done < count && run_block(c, threads, (uint64_t)(first + done)) == EXITED) ++done;
  free(threads);
  return done;
}

// True if a granule that one context has written was met by another one too, atomic updates beside each other excepted; of the pages from `first` on.
int conflict(struct Context *const *all, int64_t contexts, int64_t first, int64_t count) {
  enum { READ = 1, UPDATE = 2, WRITE = 4 };
  const uint64_t per_page = PAGE >> GRANULE_SHIFT;
  uint8_t *met = malloc(per_page);
  if (!met) return 1;
  int found = 0;
  for (int64_t page = first; page < first + count && !found; ++page) {
    if (!all[0]->saved[page]) continue;
    memset(met, 0, per_page);
    for (int64_t number = 0; number < contexts; ++number) {
      const struct Granule *granules = all[number]->granules + (uint64_t)page * per_page;
      const uint32_t start = all[number]->launch_start << CODE_BITS;
      for (uint64_t g = 0; g < per_page; ++g) {
        const uint32_t writer = granules[g].writer, code = writer & (CODES - 1);
        const uint8_t wrote = writer < start ? 0 : code == UPDATED || code == UPDATED_BY_BLOCKS ? UPDATE : WRITE;
        const uint8_t now = wrote | (granules[g].reader >= start ? READ : 0), both = met[g] | now;
        found |= now && met[g] && (both & WRITE || (both & (READ | UPDATE)) == (READ | UPDATE));
        met[g] = both;
      }
    }
  }
  free(met);
  return found;
}

// Does the additions that were put off, in their order.
void apply(struct Context *c, const struct Deferred *log, int64_t count) {
  for (int64_t i = 0; i < count; ++i) apply_one((uint32_t)(log[i].place >> 48), c->memory + (log[i].place & ((1ull << 48) - 1)), log[i].value);
}

// True if memory differs from what it was before the launch.
int has_changed(const struct Context *c, int64_t pages) {
  for (int64_t page = 0; page < pages; ++page) {
    if (!c->saved[page]) continue;
    const uint64_t start = (uint64_t)page << PAGE_SHIFT;
    if (memcmp(c->memory + start, c->saved[page], c->bytes - start < PAGE ? c->bytes - start : PAGE)) return 1;
  }
  return 0;
}

void release(void *memory) { free(memory); }

// Lets go of the flags of regions and of the copies of pages; `undo`: memory gets its former bytes back.
void finish(struct Context *c, int64_t pages, int undo) {
  for (int64_t number = 0; number < c->region_count; ++number) {
    struct Region *r = &c->regions[number];
    free(r->read), free(r->written), free(r->updated);
  }
  for (int64_t page = 0; page < pages; ++page) {
    if (c->saved[page]) {
      const uint64_t start = (uint64_t)page << PAGE_SHIFT;
      if (undo) memcpy(c->memory + start, c->saved[page], c->bytes - start < PAGE ? c->bytes - start : PAGE);
      free(c->saved[page]);
      c->saved[page] = 0;
    }
    if (c->own_flags[page]) {
      free(c->unwritten[page]);
      c->unwritten[page] = 0;
      c->own_flags[page] = 0;
    }
  }
}
