// Moves the wall clock of a process that preloads this library, and of no other: CLOCK_REALTIME and
// what libc derives from it lie as many seconds off as the file WALL_CLOCK_SHIFT says, an int64
// that may change at any time. Every other clock is the system's.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace {

const volatile std::int64_t* ShiftFile() {
  const char* path = std::getenv("WALL_CLOCK_SHIFT");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY);
  if (file < 0) {
    return nullptr;
  }
  void* page = mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return page == MAP_FAILED ? nullptr : static_cast<const std::int64_t*>(page);
}

std::int64_t ShiftSeconds() {
  static const volatile std::int64_t* shift = ShiftFile();
  return shift == nullptr ? 0 : *shift;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += ShiftSeconds();
  }
  return result;
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* now) noexcept {
  timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now != nullptr) {
    *now = precise.tv_sec;
  }
  return precise.tv_sec;
}
}
