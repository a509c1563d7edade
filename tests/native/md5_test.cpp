#include "format/md5.hpp"

#include "check.hpp"

static std::string hex(std::string_view text) {
  std::string out;
  for (uint8_t b : dft::md5(text)) {
    char two[3];
    snprintf(two, sizeof two, "%02x", b);
    out += two;
  }
  return out;
}

TEST(the_vectors_of_rfc_1321) {
  CHECK_EQ(hex(""), "d41d8cd98f00b204e9800998ecf8427e");
  CHECK_EQ(hex("a"), "0cc175b9c0f1b6a831c399e269772661");
  CHECK_EQ(hex("abc"), "900150983cd24fb0d6963f7d28e17f72");
  CHECK_EQ(hex("message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
  CHECK_EQ(hex("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"), "d174ab98d277d9f5a5611c2c9f419d9f");
  CHECK_EQ(hex("12345678901234567890123456789012345678901234567890123456789012345678901234567890"),
           "57edf4a22be3c955ac49da2e2107b67a");
}

TEST(lengths_around_the_padding) {
  // md5 of n times 'x'
  CHECK_EQ(hex(std::string(55, 'x')), "04364420e25c512fd958a70738aa8f72");
  CHECK_EQ(hex(std::string(56, 'x')), "668a72d5ba17f08e62dabcafad6db14b");
  CHECK_EQ(hex(std::string(63, 'x')), "7dc2ca208106a2f703567bdff99d8981");
  CHECK_EQ(hex(std::string(64, 'x')), "c1bb4f81d892b2d57947682aeb252456");
  CHECK_EQ(hex(std::string(119, 'x')), "ab347a5f68c8a443cfcddc633f12c24f");
  CHECK_EQ(hex(std::string(120, 'x')), "fb98667f98096de92620b64f46e1c5b5");
}

TEST(the_hashes_of_published_traces) {
  CHECK_EQ(dft::short_hash("vm"), "6882804a826580cd");
  CHECK_EQ(dft::short_hash("tuolumne1004"), "f9ff883caaf21863");
  CHECK_EQ(dft::short_hash("/usr/WS2/sinurat1/pydftracer"), "457466652c169c22");
  CHECK_EQ(dft::short_hash("DEFAULT-spawn"), "8a4eff4d79020d73");
}

TEST_MAIN
