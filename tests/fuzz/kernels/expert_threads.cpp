// Layers of experts on the real thread pool under ThreadSanitizer: callers that take turns, few tasks that all threads
// compute together and many of which each is one thread's alone.
//
// Exits 0 when every row has the bits that it has alone; the sanitizer ends it otherwise. A first argument plants a race.
#include <thread>

#include "expert_case.h"
#include "thread_pool.h"
#include "variant_table.h"

namespace mindbatch {
namespace portable { extern const KernelTable table; }
const KernelTable* table = &portable::table;  // what instruction_sets.cpp chooses elsewhere
}  // namespace mindbatch

namespace {

void caller(uint64_t seed, bool races) {
  Random random{seed};
  for (const ExpertCase& each : std::vector<ExpertCase>{{9, 5, 6, 3, 2, 1}, {40, 7, 3, 33, 1, 1}, {30, 9, 5, 12, 3, 4}}) {
    const ExpertLayer layer(random, each);
    const Floats x = drawn(random, "experts.x", {each.rows, each.hidden}), y = empty("experts.y", {each.rows, each.hidden});
    std::thread racer([&] { if (races) x.memory[0] = 0; });
    require(layer.run(x, layer.shape(), y) == 0, "failed");
    racer.join();
    for (int64_t r = 0; r < each.rows && !races; r++) {
      const float* its = &x.values[r * each.hidden];
      const Floats one("experts.one_x", {1, each.hidden}, std::vector<float>(its, its + each.hidden));
      const Floats found = empty("experts.one_y", {1, each.hidden});
      require(layer.run(one, layer.shape(), found) == 0, "failed");
      require(std::memcmp(found.memory, y.memory + r * each.hidden, static_cast<size_t>(each.hidden) * 4) == 0,
              "a row alone has other bits");
    }
  }
}

}  // namespace

int main(int count, char**) {
  mindbatch::set_num_threads(3);
  std::thread first(caller, 1, count > 1), second(caller, 2, count > 1);
  first.join();
  second.join();
  std::puts("every row is right");
}
