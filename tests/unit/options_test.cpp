// Options and UCX configuration from the environment.
#include "torch_ucx/transport/options.h"

#include <gtest/gtest.h>
#include <ucp/api/ucp.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "plugin/transport/engine.h"
#include "plugin/transport/presets.h"
#include "plugin/ucp/config.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {
namespace {

class Environment : public ::testing::Test {
 protected:
  void set(const char* name, const char* value) {
    ::setenv(name, value, 1);
    names_.push_back(name);
  }
  void TearDown() override {
    for (const auto& name : names_) ::unsetenv(name.c_str());
  }
  static std::string refusal() {
    try {
      (void)EngineOptions::from_environment();
    } catch (const ArgumentError& error) {
      return error.what();
    }
    return "accepted";
  }

 private:
  std::vector<std::string> names_;
};

// The value UCX has for an option, read from what it prints of its configuration.
std::string value_of(const ucp::Config& config, const std::string& name) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = ::open_memstream(&text, &size);
  ucp_config_print(config.get(), stream, nullptr, UCS_CONFIG_PRINT_CONFIG);
  std::fclose(stream);
  const std::string all(text, size);
  std::free(text);  // NOLINT: open_memstream's buffer
  const auto at = all.find("UCX_" + name + "=");
  if (at == std::string::npos) return "absent";
  const auto start = at + name.size() + 5;
  return all.substr(start, all.find('\n', start) - start);
}

using Options = Environment;

TEST_F(Options, Defaults) {
  const auto options = EngineOptions::from_environment();
  EXPECT_EQ(options.spin.count(), 1000);
  EXPECT_EQ(options.progress, ProgressMode::automatic);
  EXPECT_EQ(options.linger.count(), 10'000);
  EXPECT_EQ(options.error_mode, ErrorModeWish::automatic);
  EXPECT_FALSE(options.allow_version_mismatch);
}

TEST_F(Options, ValuesAreRead) {
  set("TORCH_UCX_SPIN_US", "0");
  set("TORCH_UCX_LINGER_S", "2.5");
  set("TORCH_UCX_ERROR_MODE", "peer");
  set("TORCH_UCX_ALLOW_VERSION_MISMATCH", "1");
  const auto options = EngineOptions::from_environment();
  EXPECT_EQ(options.spin.count(), 0);
  EXPECT_EQ(options.linger.count(), 2500);
  EXPECT_EQ(options.error_mode, ErrorModeWish::peer);
  EXPECT_TRUE(options.allow_version_mismatch);
  set("TORCH_UCX_PROGRESS", "auto");
  EXPECT_EQ(EngineOptions::from_environment().progress, ProgressMode::automatic);
  set("TORCH_UCX_PROGRESS", "caller");
  EXPECT_EQ(EngineOptions::from_environment().progress, ProgressMode::caller);
  set("TORCH_UCX_PROGRESS", "thread");
  EXPECT_EQ(EngineOptions::from_environment().progress, ProgressMode::thread);
}

TEST_F(Options, BadValuesAreNamedWithWhatIsAllowed) {
  const struct {
    const char* name;
    const char* value;
    const char* text;
  } cases[] = {
      {"TORCH_UCX_SPIN_US", "-1",
       "TORCH_UCX_SPIN_US=-1: allowed is a whole number of microseconds, 0 to 1000000"},
      {"TORCH_UCX_SPIN_US", "5x",
       "TORCH_UCX_SPIN_US=5x: allowed is a whole number of microseconds, 0 to 1000000"},
      {"TORCH_UCX_LINGER_S", "", "TORCH_UCX_LINGER_S=: allowed is a number of seconds, 0 to 86400"},
      {"TORCH_UCX_ERROR_MODE", "both", "TORCH_UCX_ERROR_MODE=both: allowed is auto, none or peer"},
      {"TORCH_UCX_PROGRESS", "yes", "TORCH_UCX_PROGRESS=yes: allowed is auto, caller or thread"},
      {"TORCH_UCX_LOG_LEVEL", "loud",
       "TORCH_UCX_LOG_LEVEL=loud: allowed is error, warn, info or debug"},
      {"TORCH_UCX_ALLOW_VERSION_MISMATCH", "yes",
       "TORCH_UCX_ALLOW_VERSION_MISMATCH=yes: allowed is 0 or 1"},
  };
  for (const auto& c : cases) {
    set(c.name, c.value);
    EXPECT_EQ(refusal(), c.text);
    ::unsetenv(c.name);
  }
}

using UcxConfig = Environment;

TEST_F(UcxConfig, OverridesWinOverUcxsOwnVariablesAndPluginOptionsAreLeftAlone) {
  set("UCX_RNDV_THRESH", "1234");
  set("TORCH_UCX_RNDV_THRESH", "4321");
  set("TORCH_UCX_SPIN_US", "7");
  ucp::Config config;
  config.override_from_environment(&is_plugin_option);
  EXPECT_NE(value_of(config, "RNDV_THRESH").find("4321"), std::string::npos)
      << value_of(config, "RNDV_THRESH");
}

TEST_F(UcxConfig, UnknownOverrideIsNamed) {
  set("TORCH_UCX_NO_SUCH_OPTION", "1");
  // Older UCX (1.13) keeps unknown names for its transports, and warns when none of them takes it.
  ::testing::internal::CaptureStdout();
  std::string refusal;
  try {
    (void)Engine::create({});
  } catch (const ArgumentError& error) {
    refusal = error.what();
  }
  const std::string printed = ::testing::internal::GetCapturedStdout();
  if (refusal.empty()) {
    EXPECT_NE(printed.find("NO_SUCH_OPTION=1"), std::string::npos) << printed;
  } else {
    EXPECT_NE(
        refusal.find(
            "TORCH_UCX_NO_SUCH_OPTION=1 is neither an option of torch_ucx nor accepted by UCX"),
        std::string::npos)
        << refusal;
  }
}

TEST_F(UcxConfig, PresetsOfThisVersionWhereTheUserSetNothing) {
  const auto version = ucp::library_version();
  const bool measured = !(version < ucp::LibraryVersion{1, 22, 0});
  const std::string expected =
      measured ? "intra:64K,inter:auto" : value_of(ucp::Config(), "RNDV_THRESH");
  {
    ucp::Config config;
    apply_presets(config, version);
    EXPECT_EQ(value_of(config, "RNDV_THRESH"), expected);
  }
  set("UCX_RNDV_THRESH", "inf");
  ucp::Config config;
  apply_presets(config, version);
  EXPECT_NE(value_of(config, "RNDV_THRESH").find("inf"), std::string::npos);
}

TEST_F(UcxConfig, DefaultsOfOurOwnYieldToTheUser) {
  {
    ucp::Config config;
    EXPECT_TRUE(config.set_default("RNDV_THRESH", "1111"));
    EXPECT_NE(value_of(config, "RNDV_THRESH").find("1111"), std::string::npos);
  }
  set("UCX_RNDV_THRESH", "2222");
  ucp::Config config;
  EXPECT_FALSE(config.set_default("RNDV_THRESH", "1111"));
  EXPECT_NE(value_of(config, "RNDV_THRESH").find("2222"), std::string::npos);
}

TEST_F(UcxConfig, TransportThatDoesNotExistNamesTheVariable) {
  set("UCX_TLS", "bogus");
  try {
    (void)Engine::create({});
    FAIL() << "an engine without a transport";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("UCX_TLS=bogus"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace torch_ucx::transport
