#include "record/settings.hpp"

namespace dft {
namespace {

// Leaked and made when the library is loaded, like the state of the session.
Settings* const g_settings = new Settings;

}  // namespace

void configure(Settings settings) { *g_settings = std::move(settings); }
const Settings& settings() { return *g_settings; }

}  // namespace dft
